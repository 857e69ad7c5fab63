"""The ends of features in workers; `torchserve_py.plugins` names what workers import of them."""
