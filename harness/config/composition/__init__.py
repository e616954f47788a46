"""Composes the points of a sweep. The only package that uses Hydra and OmegaConf."""

from harness.config.composition.sweep import CONF, compose, hydra_output, register

__all__ = ["CONF", "compose", "hydra_output", "register"]
