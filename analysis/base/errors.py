"""Errors of the analysis. Each is a sentence for the user: what was given, what is valid, what to do."""


class StudyError(ValueError):
    """An error the user can fix: the folder is not a study, its version is unknown, the output is not writable."""
