"""Use of a trained model: prediction, evaluation, export."""
