"""The keys of a run's summary and of an evaluation's, for type checkers and readers."""

# Without `annotations` from `__future__`, so that `Summary.__required_keys__` has only the required ones.
from typing import NotRequired, TypedDict

from mpidl.engines.totals import Shares, Timing
from mpidl.shards.staleness import Staleness


class EvaluatedFigures(TypedDict, total=False):
    """Figures of the validation data, and the metrics of ``run.metrics``; None if one is undefined."""

    validation_loss: float | None
    validation_accuracy: float | None
    validation_top5_accuracy: float | None
    validation_mean_squared_error: float | None
    validation_mean_absolute_error: float | None
    validation_r2: float | None
    validation_f1: float | None
    validation_auc: float | None
    test_top5_accuracy: float | None
    test_mean_squared_error: float | None
    test_mean_absolute_error: float | None
    test_r2: float | None
    test_f1: float | None
    test_auc: float | None


class LastIteration(TypedDict):
    """The last iteration of an algorithm whose coordinator evaluates an objective, such as ``sandblaster``.

    Attributes
    ----------
    number : int
        The iteration, from 1.
    objective : float
        Mean loss of the batch.
    gradient_norm : float
        Euclidean norm of the gradient.
    step : float
        Length of the accepted step, in units of the direction.
    evaluations, total_evaluations : int
        Number of evaluations of the objective: in this iteration, and in the whole run.
    portions, backups, won : int
        Number of portions of data computed in this iteration, of units given to a second replica, and of those that the
        second one finished first.
    waiting : float
        Seconds from the first assignment of the last unit to the end, summed over the evaluations.
    operating : float
        Seconds in which replicas had to wait for operations on the servers.
    messages : int
        Number of messages between coordinator and servers.
    """

    number: int
    objective: float
    gradient_norm: float
    step: float
    evaluations: int
    total_evaluations: int
    portions: int
    backups: int
    won: int
    waiting: float
    operating: float
    messages: int


class Summary(EvaluatedFigures, TypedDict):
    """What `mpidl.train` and `mpidl.loop` return, and ``summary.json`` contains: a dict with the keys below.

    Samples, epochs and seconds include those before the run was resumed. Type checkers report any other key. Figures
    with names of your own, from a loss with several terms, a function in ``run.metrics`` or the ``evaluate`` of
    `mpidl.loop`, are in the dict too; annotate it as ``Mapping[str, Any]`` to read them.

    Attributes
    ----------
    algorithm : str
        Name of the algorithm.
    ranks, servers, replicas, partitions, relays : int
        Number of ranks, servers, replicas, workers of each replica, and relays.
    interrupted : bool
        Whether a signal ended the run early, after saving.
    stopped : str or None
        Why the run ended early: what an evaluation has found or, after a signal, which ranks gave no answer.
    epochs : float
        Epochs of training.
    samples : int
        Samples trained on.
    seconds : float
        Seconds of training, from the first fetch to the last push, without evaluations.
    samples_per_second : float
        Samples computed per second of training.
    seconds_to_target : float or None
        Seconds of training until ``run.target`` was reached.
    train_loss : float or None
        Mean training loss of the last epoch, or the objective of the last iteration.
    test_loss, test_accuracy : float or None
        Last evaluation on the test data. Like all figures of evaluations, None without such data or if undefined.
    validation_loss, validation_accuracy : float or None, optional
        Last evaluation on the validation data, if there are any.
    test_top5_accuracy, test_f1, test_auc, test_r2, test_mean_squared_error, test_mean_absolute_error : float or None
        The metrics in ``run.metrics`` on the test data; the other keys are absent.
    validation_top5_accuracy, validation_f1, validation_auc, validation_r2 : float or None, optional
    validation_mean_squared_error, validation_mean_absolute_error : float or None, optional
        The same on the validation data.
    accuracy_name : str
        "accuracy" or, with several labels per sample, "exact match".
    best_step : int or None
        Step of the best checkpoint.
    best_epoch : float, optional
        Epochs of training before its evaluation.
    best_validation_loss, best_validation_accuracy, best_validation_top5_accuracy, best_validation_f1 : float, optional
    best_validation_auc, best_validation_r2, best_validation_mean_squared_error : float, optional
    best_validation_mean_absolute_error, best_test_loss, best_test_accuracy, best_test_top5_accuracy : float, optional
    best_test_f1, best_test_auc, best_test_r2, best_test_mean_squared_error : float, optional
    best_test_mean_absolute_error : float, optional
        The figure that decided which checkpoint is best; the other keys are absent.
    gradient_norm : float, optional
        Euclidean norm of the last iteration's gradient.
    iteration : LastIteration, optional
        The last iteration, if the algorithm's coordinator evaluates an objective, as in ``sandblaster``.
    pushes, fetches : int
        Number of pushes and of fetches of whole vectors, by all replicas.
    bytes_pushed, bytes_fetched : int
        Their bytes.
    bytes_moved : int
        Bytes that workers of the same replica sent each other.
    staleness : Staleness
        Mean, percentiles and maximum of the pushes' staleness.
    staleness_histogram : list of int
        Number of pushes with staleness 0, 1, ..., summed over the shards.
    dropped : int
        Number of pushes that shards dropped, summed over the shards.
    gradients_stopped, seconds_saved : int, float, optional
        Number of gradients that replicas stopped because they would have come too late, and the time that the rest of
        them would have taken, summed over the replicas.
    rows, rows_new, rows_admitted, rows_evicted : int, optional
        For models with tables: rows at the end, ids without a row in updates, ids that got one, and evicted rows.
    owner_samples : list of int, optional
        Samples that each replica has trained on, if each has data of its own.
    logged : dict of str to float, optional
        Means of the figures passed to ``replica.log``.
    timing : Timing
        Durations by which a virtual cluster can simulate the run.
    shares : Shares
        Fractions of the workers' time.
    failures, recoveries : int
        Number of failed ranks, and of takeovers and restarts.
    goodput, samples_again, restarts : optional
        For a virtual cluster with failures: samples per second, excluding recomputed ones (float); number of recomputed
        samples (int); number of restarts of the job (int).
    run_dir : str
        The run's directory.
    virtual : bool
        Whether the cluster is virtual, so that times and rates are predictions.
    version, command : str
        mpidl's version, and the command line.
    hosts : dict of str to int
        Number of ranks on each host.
    mpi : str or None
        The MPI library; None without MPI.
    job_id : str or None
        The scheduler's number of the job, such as "Slurm 4711".
    seed : int
        ``run.seed``.
    date : str
        When the run began or was resumed, in UTC (ISO 8601).
    """

    algorithm: str
    ranks: int
    servers: int
    replicas: int
    partitions: int
    relays: int
    interrupted: bool
    stopped: str | None
    epochs: float
    samples: int
    seconds: float
    samples_per_second: float
    seconds_to_target: float | None
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    accuracy_name: str
    best_step: int | None
    best_epoch: NotRequired[float]
    best_validation_loss: NotRequired[float]
    best_validation_accuracy: NotRequired[float]
    best_validation_top5_accuracy: NotRequired[float]
    best_validation_mean_squared_error: NotRequired[float]
    best_validation_mean_absolute_error: NotRequired[float]
    best_validation_r2: NotRequired[float]
    best_validation_f1: NotRequired[float]
    best_validation_auc: NotRequired[float]
    best_test_loss: NotRequired[float]
    best_test_accuracy: NotRequired[float]
    best_test_top5_accuracy: NotRequired[float]
    best_test_mean_squared_error: NotRequired[float]
    best_test_mean_absolute_error: NotRequired[float]
    best_test_r2: NotRequired[float]
    best_test_f1: NotRequired[float]
    best_test_auc: NotRequired[float]
    gradient_norm: NotRequired[float]
    iteration: NotRequired[LastIteration]
    pushes: int
    fetches: int
    bytes_pushed: int
    bytes_fetched: int
    bytes_moved: int
    staleness: Staleness
    staleness_histogram: list[int]
    dropped: int
    gradients_stopped: NotRequired[int]
    seconds_saved: NotRequired[float]
    rows: NotRequired[int]
    rows_new: NotRequired[int]
    rows_admitted: NotRequired[int]
    rows_evicted: NotRequired[int]
    owner_samples: NotRequired[list[int]]
    logged: NotRequired[dict[str, float]]
    timing: Timing
    shares: Shares
    failures: int
    recoveries: int
    goodput: NotRequired[float]
    samples_again: NotRequired[int]
    restarts: NotRequired[int]
    run_dir: str
    virtual: bool
    version: str
    command: str
    hosts: dict[str, int]
    mpi: str | None
    job_id: str | None
    seed: int
    date: str


class EvaluationSummary(EvaluatedFigures, TypedDict):
    """What `mpidl.evaluate` returns: a dict with the keys below, and the other figures of evaluations in `Summary`.

    Attributes
    ----------
    run_dir : str
        The run's directory.
    step : int
        The checkpoint's step.
    epoch : float
        Epochs of training before it.
    samples : int
        Samples trained on before it.
    test_loss, test_accuracy : float or None, optional
    accuracy_name : str
        As in `Summary`.
    """

    run_dir: str
    step: int
    epoch: float
    samples: int
    accuracy_name: str
    test_loss: NotRequired[float | None]
    test_accuracy: NotRequired[float | None]
