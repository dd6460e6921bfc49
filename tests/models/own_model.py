"""A model of a user's own, as documentation shows it."""

from torch import nn

from recgrad.models.base import Model
from recgrad.nn.mlp import MLP


class TwoLayers(Model):
    """An MLP over one group, with a width that the config chooses."""

    def build(self, *, hidden, activation="nn.ReLU"):
        self.mlp = MLP(self.groups.dim("all"), [hidden], activation=activation)
        self.output = nn.Linear(hidden, self.tasks[0].num_logits)

    def predict(self, inputs):
        return self.head(self.output(self.mlp(inputs["all"])))


class Named(TwoLayers):
    """Has a setting that is called like one of the models that are there."""

    def build(self, *, task_towers):
        self.task_towers = task_towers
        super().build(hidden=3)


class NotAModel:
    pass
