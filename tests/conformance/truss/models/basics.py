"""Models that do little more than show what they were given."""


class Echo:
    def __init__(self):
        pass

    def predict(self, inputs):
        return inputs


class Steps:
    def preprocess(self, inputs):
        return [number + 1 for number in inputs]

    def predict(self, inputs):
        return {"predictions": inputs}

    def postprocess(self, result):
        return {"predictions": [number + 2 for number in result["predictions"]]}


class AsyncSteps:
    async def preprocess(self, inputs):
        return {**inputs, "preprocessed": True}

    async def predict(self, inputs):
        return inputs

    async def postprocess(self, result):
        return {**result, "postprocessed": True}


class SecretReader:
    def __init__(self, secrets):
        self.secrets = secrets

    def predict(self, inputs):
        if inputs == "safely":
            return [self.secrets.get("absent", "nothing"), "absent" in self.secrets, "mounted" in self.secrets]
        return self.secrets[inputs]


class EnvironmentReader:
    def __init__(self, environment, **kwargs):
        self.environment = environment
        self.given = sorted(kwargs)

    def predict(self, inputs):
        if inputs == "given":
            return self.given
        return self.environment and self.environment["name"]


class EnvironmentHook:
    def __init__(self):
        self.calls = []

    def setup_environment(self, environment):
        self.calls.append(["setup_environment", environment])

    def load(self):
        self.calls.append(["load", None])

    def predict(self, inputs):
        return self.calls


class Configured:
    def __init__(self, config, data_dir):
        self.config = config
        self.data_dir = data_dir

    def predict(self, inputs):
        import os

        import outside

        return {
            "concurrency": self.config["runtime"]["predict_concurrency"],
            "timeout": self.config["runtime"]["streaming_read_timeout"],
            "own": self.config["own_key"],
            "data": [str(self.data_dir), self.data_dir.is_dir()],
            "variable": os.environ["MY_VARIABLE"],
            "packages": outside.WHO,
        }
