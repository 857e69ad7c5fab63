"""Features: each is a folder with a `plugin`, which `torchserve_py.plugins` finds; the kernel imports none."""
