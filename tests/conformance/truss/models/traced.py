"""A model that makes a span of its own, and tells whose child it is."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


class Tracing:
    def load(self):
        self.tracer = TracerProvider().get_tracer("mine")

    async def predict(self, inputs):
        with self.tracer.start_as_current_span("of the model") as span:
            return [span.parent is None, trace.get_current_span() is span]
