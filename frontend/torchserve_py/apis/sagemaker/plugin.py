"""What SageMaker calls."""

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.sagemaker.bidirectional_stream import BidirectionalStreamEndpoints
    from torchserve_py.apis.sagemaker.invocations_endpoints import InvocationsEndpoints

    return [
        EndpointsOffer("inference_address", InvocationsEndpoints),
        EndpointsOffer("inference_address", BidirectionalStreamEndpoints),
    ]


PLUGIN = Plugin(name="sagemaker", endpoints=_endpoints)
