"""What a model's handler says of itself, for ``GET /models/{name}?customized=true``."""

import asyncio
import json
from typing import Any, Final

from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.serving.errors import DescriptionFailed, NoDescribeWorker
from torchserve_py.core.serving.serving import ServedModel, Serving

#: The size of a description (bytes) beyond which it is left out.
_MAX_DESCRIPTION: Final = 256 * 1024
_HEADERS: Final = (("describe", "True"),)


async def description_of(serving: Serving, model: ServedModel) -> Any:
    """Ask a model's handler to describe the model, and return its answer decoded from JSON.

    Models of other contracts have no handler; they are described by their declarations. The description is empty if the
    answer is not JSON, or is too large. Raises NoDescribeWorker; DescriptionFailed: no answer, or an error.
    """
    if not any(worker.ready for worker in serving.status(model).workers):
        raise NoDescribeWorker(model.name)
    if not model.contract.handlers:
        return dict(serving.declared(model))
    call = Call(_HEADERS, [], unbatched=True, via="server")
    serving.submit(model, call)
    try:
        async with asyncio.timeout(model.config.response_timeout):
            part = await call.next()
    except TimeoutError as error:
        raise DescriptionFailed(model.name, "it did not answer within responseTimeout") from error
    except JobFailed as error:
        raise DescriptionFailed(model.name, error.cause) from error
    finally:
        call.cancel()
    if part.error is not None:
        raise DescriptionFailed(model.name, part.error)
    try:
        return json.loads(part.body) if len(part.body) <= _MAX_DESCRIPTION else {}
    except (ValueError, RecursionError):
        return {}
