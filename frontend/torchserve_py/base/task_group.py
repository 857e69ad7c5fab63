"""Groups of tasks that leave no reference cycles behind."""

import asyncio
from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """A group whose error does not refer to the group's own frame.

    That frame refers to the error, in Python before 3.13. The cycle would keep what the frames of the tasks hold,
    bodies of requests among it, until the garbage collector comes. For the same reason raise an error of the group
    outside of the ``except`` clause that caught the group: within, the error would refer to the group.
    """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except BaseException as ended:
            ended.with_traceback(None)
            raise
