"""What SageMaker calls."""

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.sagemaker.bidirectional_stream import BidirectionalStreamDoor
    from torchserve_py.apis.sagemaker.invocations_door import InvocationsDoor

    return [DoorOffer("inference_address", InvocationsDoor), DoorOffer("inference_address", BidirectionalStreamDoor)]


PLUGIN = Plugin(name="sagemaker", doors=_doors)
