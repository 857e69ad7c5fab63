"""The Open Inference Protocol in the worker: requests decoded, responses encoded, the same for every model contract.

`types` has what a request and a response are, `tensors` what can be done with a tensor's data, `rest` and `grpc` the
two forms on the wire, and `receive` is where a runtime begins.
"""
