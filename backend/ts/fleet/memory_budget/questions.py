"""What the server asks the process of a handler that sleeps.

The answer is how many seconds the handler took, or the text of what it raised.
"""

from typing import Final

SLEEP: Final = "sleep"
WAKE: Final = "wake"
