// Gives the Kotlin code of taps tensors of every dtype, as PyTorch Mobile would.
import java.io.File;
import java.util.LinkedHashMap;
import java.util.Map;
import org.pytorch.DType;
import org.pytorch.IValue;
import org.pytorch.Tensor;

class Given extends Tensor {
    private final DType dtype;
    private final long[] shape;
    Given(DType dtype, long... shape) { this.dtype = dtype; this.shape = shape; }
    @Override public DType dtype() { return dtype; }
    @Override public long[] shape() { return shape; }
    @Override public long numel() { long count = 1; for (long size : shape) count *= size; return count; }
    private double at(int place) { return place * 1.5 - 3; }
    @Override public float[] getDataAsFloatArray() {
        float[] all = new float[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = (float) at(i);
        return all;
    }
    @Override public double[] getDataAsDoubleArray() {
        double[] all = new double[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = at(i);
        return all;
    }
    @Override public int[] getDataAsIntArray() {
        int[] all = new int[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = (int) at(i);
        return all;
    }
    @Override public long[] getDataAsLongArray() {
        long[] all = new long[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = (long) at(i) << 33;
        return all;
    }
    @Override public byte[] getDataAsByteArray() {
        byte[] all = new byte[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = (byte) at(i);
        return all;
    }
    @Override public byte[] getDataAsUnsignedByteArray() {
        byte[] all = new byte[(int) numel()];
        for (int i = 0; i < all.length; i++) all[i] = (byte) (200 + i);
        return all;
    }
}

class Taken extends IValue {
    private final Tensor tensor;
    Taken(Tensor tensor) { this.tensor = tensor; }
    @Override public Tensor toTensor() { return tensor; }
}

class All extends IValue {
    @Override public Map<String, IValue> toDictStringKey() {
        Map<String, IValue> all = new LinkedHashMap<>();
        for (DType dtype : DType.values()) all.put(dtype.name(), new Taken(new Given(dtype, 2, 3, 1)));
        all.put("number", new Taken(new Given(DType.FLOAT32)));
        all.put("empty.0", new Taken(new Given(DType.FLOAT64, 0, 5)));
        return all;
    }
}

public class Runner {
    public static void main(String[] arguments) {
        com.example.model.NetTaps.INSTANCE.save(new All(), new File(arguments[0]));
    }
}
