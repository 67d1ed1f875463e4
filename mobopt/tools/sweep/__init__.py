"""Many models, backends, releases and devices at once, on a cluster of Dask."""
