"""A random algorithm as a user writes it. Its state is that of NumPy's generator, which is no JSON."""

import numpy as np
from plugins.core.base_plugin_opt import BasePluginOptimizer
from plugins.core.logger.logger import logger


class PluginOptimizer(BasePluginOptimizer):
    def __init__(self, name, hyper_parameters, **kwargs):
        super().__init__(name, hyper_parameters, **kwargs)
        self.parameters = hyper_parameters
        np.random.seed(int(kwargs.get("seed", 0)))
        logger.info("begin %s with %s", name, sorted(kwargs))

    def search(self, number_samples, last_exp_results):
        logger.debug("last results: %s", last_exp_results)
        print("searching")
        found = []
        for _ in range(number_samples):
            one = {}
            for item in self.parameters:
                if item["type"] == "Range" and item["dataType"] == "DOUBLE":
                    one[item["name"]] = np.random.uniform(item["minDbVal"], item["maxDbVal"])
                elif item["type"] == "Range":
                    one[item["name"]] = np.random.randint(item["minIntVal"], item["maxIntVal"])
                else:
                    one[item["name"]] = np.random.choice(item["discreateStrVal"])
            found.append(one)
        return found

    def get_state(self):
        return {"rng_state": np.random.get_state()}

    def set_state(self, state_dict):
        np.random.set_state(state_dict["rng_state"])
