"""A grid as a user writes it, without methods for its state."""

import itertools

from plugins.core.base_plugin_opt import BasePluginOptimizer


class PluginOptimizer(BasePluginOptimizer):
    def __init__(self, name, hyper_parameters, **kwargs):
        super().__init__(name, hyper_parameters, **kwargs)
        axes = {item["name"]: list(range(item["minIntVal"], item["maxIntVal"], 1))
                for item in sorted(hyper_parameters, key=lambda item: item["name"])}
        self.cells = [dict(zip(axes, cell, strict=True)) for cell in itertools.product(*axes.values())]
        self.index = 0

    def search(self, number_samples, last_exp_results=None):
        found = self.cells[self.index:self.index + number_samples]
        self.index += len(found)
        return found
