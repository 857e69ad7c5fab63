"""Calls all that kserve's clients have, of a server that `kserve_server.py` runs; needs kserve alone.

python kserve_client.py V1_URL V2_URL GRPC_TARGET
"""

import asyncio
import sys
from importlib.metadata import version

import kserve
import numpy as np

NUMBERS = [1.0, 2.5]


def request() -> kserve.InferRequest:
    """Two numbers for the model that doubles them."""
    tensor = kserve.InferInput("x", [2], "FP32")
    tensor.set_data_from_numpy(np.array(NUMBERS, dtype=np.float32), binary_data=False)
    return kserve.InferRequest(model_name="double", infer_inputs=[tensor])


def check(response: kserve.InferResponse) -> None:
    """Find the numbers doubled."""
    assert response.outputs[0].as_numpy().tolist() == [2.0, 5.0], response


async def check_v1(url: str) -> None:
    """The REST client of the first protocol."""
    async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1")) as client:
        assert await client.is_server_live(url)
        assert await client.is_model_ready(url, "double")
        answer = await client.infer(url, {"instances": [NUMBERS]}, model_name="double")
        assert answer["predictions"] == [[2.0, 5.0]], answer
    print("InferenceRESTClient, v1: live, ready, infer")


async def check_v2(url: str) -> None:
    """The REST client of the second protocol."""
    async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "double")
        assert not await client.is_model_ready(url, "ghost")
        check(await client.infer(url, request(), model_name="double"))
    print("InferenceRESTClient, v2: live, ready, infer")


async def check_grpc(target: str) -> None:
    """The gRPC client."""
    async with kserve.InferenceGRPCClient(target) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("double")
        check(await client.infer(request()))
    print("InferenceGRPCClient: live, ready, infer")


async def main() -> None:
    """All of them."""
    print("kserve", version("kserve"))
    await check_v1(sys.argv[1])
    await check_v2(sys.argv[2])
    await check_grpc(sys.argv[3])


if __name__ == "__main__":
    asyncio.run(main())
