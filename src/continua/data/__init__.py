"""Floor 2: data sets behind one interface - batches, the form of a fitting model, loss and metrics."""

from continua.core.batch import Batch
from continua.data.burgers import Burgers, burgers_solution
from continua.data.csv_file import CsvSeries, CsvTable, read_cells, read_csv
from continua.data.csv_series import Csv, SeriesWindows
from continua.data.darcy import Darcy, darcy_solution
from continua.data.digits import Digits
from continua.data.linear_features import ChannelSamples, LagFeatures
from continua.data.linear_reference import LinearReference
from continua.data.mnist1d import Mnist1d, raw_mnist1d
from continua.data.sampling import (
    Resampling,
    Samples,
    drop_samples,
    fourier_features,
    interpolate,
    refine,
    roll,
    take_every,
)
from continua.data.series_transform import Prepared, Rows, SeriesTransform, SeriesUnits, assemble
from continua.data.spirals import Spirals
from continua.data.task import AbstractTask, Form, Question, Split, Wording, series_errors
from continua.data.text import Text, encode
from continua.data.uea import LabelledSeries, LabelTransform, Uea, read_ts

__all__ = [
    "AbstractTask", "Batch", "Burgers", "ChannelSamples", "Csv", "CsvSeries", "CsvTable", "Darcy", "Digits", "Form",
    "LabelTransform", "LabelledSeries", "LagFeatures", "LinearReference", "Mnist1d", "Prepared", "Question",
    "Resampling", "Rows", "Samples", "SeriesTransform", "SeriesUnits", "SeriesWindows", "Spirals", "Split", "Text",
    "Uea", "Wording", "assemble", "burgers_solution", "darcy_solution", "drop_samples", "encode", "fourier_features",
    "interpolate", "raw_mnist1d", "read_cells", "read_csv", "read_ts", "refine", "roll", "series_errors", "take_every",
]  # fmt: skip
