"""Builders of the models; these modules import torch."""
