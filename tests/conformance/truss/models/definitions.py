"""Classes that are no models: each breaks one rule."""

from fastapi import Request


class SecondIsNoRequest:
    def predict(self, inputs, other):
        return inputs


class RequestFirst:
    def predict(self, request: Request, inputs):
        return inputs


class ThreeArguments:
    def predict(self, inputs, request: Request, more):
        return inputs


class PreprocessInVain:
    def preprocess(self, inputs):
        return inputs

    def predict(self, request: Request):
        return 1


class PostprocessInVain:
    def predict(self, inputs):
        return inputs

    def postprocess(self, request: Request):
        return 1


class OnlyPreprocess:
    def preprocess(self, inputs):
        return inputs


class Empty:
    pass


class PredictAndWebsocket:
    def predict(self, inputs):
        return inputs

    async def websocket(self, websocket):
        pass


class PreprocessAndWebsocket:
    def preprocess(self, inputs):
        return inputs

    async def websocket(self, websocket):
        pass


class HealthWithArgument:
    def predict(self, inputs):
        return inputs

    def is_healthy(self, why):
        return True
