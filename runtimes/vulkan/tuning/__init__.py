"""Fits the costs by which kernels of products are chosen to a device, by measuring kernels on layers of networks, and
the limit up to which dispatches wait by counters, by measuring stretches of networks.

Costs only choose between kernels that are all right, so tuning changes times, and results by no more than the rounding
of sums in another order, or of floats that become two halves each.
"""
