"""ONNX in: a model of the ``ai.onnx`` and ``com.microsoft`` domains becomes a Program of ATen operators."""
