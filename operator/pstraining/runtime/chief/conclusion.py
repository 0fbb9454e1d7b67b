"""The chief's work after training: it exports the model, evaluates it, and writes the result."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import StateParts
from pstraining.runtime.chief.reports.evaluation import evaluation_weights, numbers
from pstraining.runtime.data.batches import for_evaluation
from pstraining.runtime.model import export
from pstraining.runtime.model.errors import refusing_repeated_errors
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.tensor import Dataset
from pstraining.runtime.telemetry.events import as_json, event
from pstraining.runtime.telemetry.long_evaluation import noting_long

RESULT_FILE: Final = "result.json"
WEIGHTS_FILE: Final = "final.weights.h5"
MODEL_FILE: Final = "final.keras"


def conclude(
    model: Model,
    evaluate: Callable[[], Dataset] | None,
    final: StateParts,
    saver: Saver | None,
    *,
    local_optimizers: bool = False,
) -> dict[str, float]:
    """Export the last state's model, evaluate it, and return the result: the step, and metrics as test_<name>.

    The export is first: the model is kept if the evaluation fails.

    Args:
        model: the chief's model, which gets the state's weights.
        evaluate: returns the dataset for evaluation; None: no evaluation.
        final: the last state; in a job with a folder the checkpoint as it is on disk.
        saver: writes the model and the result; None: no export.
        local_optimizers: whether workers have local optimizers. The servers then have no averages of the weights.

    Raises:
        ModelError: Keras refuses the data for evaluation.
        NotSavedError: the model or the result could not be written. The checkpoint is kept.
        SupersededError: the folder belongs to a later chief now.
    """
    model.assign(evaluation_weights(final, model.trained_by, over=not local_optimizers))
    if saver:
        _export(model, saver)
    result: dict[str, float] = {"step": final.step}
    if evaluate is not None:
        with refusing_repeated_errors("evaluate: the model cannot be evaluated"), noting_long("evaluate"):
            measured = model.keras.evaluate(for_evaluation(evaluate()), return_dict=True, verbose=0)
        result |= {f"test_{name}": value for name, value in numbers(measured).items()}
    if saver:
        text = as_json(result) + "\n"
        with saver.exporting():
            saver.checkpoints.write_whole(RESULT_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    event("result", **result)
    return result


def _export(model: Model, saver: Saver) -> None:
    write = saver.checkpoints.write_whole
    with saver.exporting():
        write(WEIGHTS_FILE, lambda path: export.save_weights(model.keras, path))
        try:
            write(MODEL_FILE, lambda path: _save_model(model, path))
        except export.NotExportedError as error:  # the job does not fail: the weights are exported
            event("not_exported", file=MODEL_FILE, reason=str(error), help=f"{WEIGHTS_FILE} has the weights")


def _save_model(model: Model, path: Path) -> None:
    """Write the whole model to a file.

    Raises:
        NotExportedError: Keras cannot save the model.
        OSError: the disk is full, or does not answer.
    """
    try:
        export.save_model(model.keras, path)
    except OSError as error:
        if error.errno in files.FULL | files.PASSING:
            raise
        raise export.NotExportedError(f"{type(error).__name__}: {error}") from error  # a layer may raise it, too
