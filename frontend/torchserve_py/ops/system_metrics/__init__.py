"""The host is measured: processors, memory, disk, GPUs, and the memory of each worker."""
