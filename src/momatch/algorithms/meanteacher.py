"""Mean Teacher (Tarvainen and Valpola, 2017)."""

from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.targets import ramp, squared_error


class MeanTeacher(Algorithm):
    """The posterior of one weak view follows the averaged model's of another.

    Args:
        sizes: not used.
        unlabeled_weight: weight of the loss, at the end of the ramp.
        ramp_up: fraction of the training over which the weight rises from 0.
    """

    wants = Wants(trained=("weak_1",), guess="teacher")

    def __init__(self, sizes: Sizes, *, unlabeled_weight: float, ramp_up: float) -> None:
        super().__init__()
        self.unlabeled_weight = unlabeled_weight
        self.ramp_up = ramp_up

    def label(self, guess: Guess) -> Targets:
        """The teacher's posterior, of every sample."""
        return Targets(guess.posterior, guess.keep, guess.keep)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """mean(weight * mean_k (p_k - teacher_k)^2)."""
        error = squared_error(outputs["weak_1"].log_joint, pseudo.target)
        weight = self.unlabeled_weight * ramp(outputs.progress, self.ramp_up)
        return {"unlabeled_loss": weight * (pseudo.weight * error).mean()}
