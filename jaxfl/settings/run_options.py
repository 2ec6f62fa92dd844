"""The options that every run has, whatever its method, data, model and optimiser."""

from typing import Literal

from jaxfl import sampling
from jaxfl.models.precision import Compute
from jaxfl.schema import Option
from jaxfl.settings import schedules

# Of every run. `dropouts` and `availability` say who takes part, see `jaxfl.sampling`; see `jaxfl.FineTune` too.
RUN = (
    Option("chunk", "auto", int | None | Literal["auto"], "clients trained side by side; none takes all of a cohort"),
    Option("devices", None, int | None | Literal["all"], "devices that share a round; none takes all GPUs, or cores"),
    Option("dropouts", 0.0, float, "share of the sampled clients that fail"),
    Option("availability", "always", sampling.Pattern, "who can be sampled"),
    Option("availability_period", 24.0, float, "rounds of a day, of availability=diurnal"),
    Option("fast_forms", True, bool, "whether convolutions and poolings take the forms that are fast for many clients"),
    Option("compute", "float32", Compute, "what the network computes in; parameters and losses are float32 anyway"),
    Option("task", "auto", str, "what is learned; auto goes by the data's labels, FILE.py:NAME is your own"),
    Option("test_rows", None, int | None, "the most rows tested of a client before the last round; none tests all"),
    Option("eval_clients", None, int | None, "clients that are tested; none tests all of up to 10,000"),
    Option(
        "resident",
        "auto",
        bool | Literal["auto"],
        "whether all clients' rows and models lie on the device, or a round's are sent ahead",
    ),
    Option("finetune", None, int | None, "epochs of every client before a second test, as --finetune"),
    Option(
        "finetune_batch_size", "local", int | None | Literal["local"], "of these epochs; none takes all rows at once"
    ),
    Option("schedule", "constant", schedules.Name, "how the clients' learning rate changes from round to round"),
    Option("schedule_rounds", None, int | None, "rounds that it falls or rises for, or between two steps"),
    Option("schedule_factor", None, float | None, "of the learning rate: where it falls to, or rises from"),
    Option("weights", None, str | None, "FILE.safetensors with the model that all start from, see jaxfl.start_from"),
)
