"""torchrun, which starts the processes of parallel workers."""
