"""From a straight line of calls to a Stream of dispatches: fusion, placement, lowering."""
