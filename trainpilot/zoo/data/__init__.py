"""Training data: real digits, generated samples, and files of the user."""

from trainpilot.zoo.data.adaptation import adapt_images, settings_for_data
from trainpilot.zoo.data.batches import batches
from trainpilot.zoo.data.digits import digits, write_digits
from trainpilot.zoo.data.loading import load_dataset
from trainpilot.zoo.data.synthetic import synthetic
from trainpilot.zoo.data.training_data import TrainingData, stratified_split, training_data
from trainpilot.zoo.data.validation import validate_arrays

__all__ = [
    "TrainingData",
    "adapt_images",
    "batches",
    "digits",
    "load_dataset",
    "settings_for_data",
    "stratified_split",
    "synthetic",
    "training_data",
    "validate_arrays",
    "write_digits",
]
