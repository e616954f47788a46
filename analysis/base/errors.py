"""The errors of this room. Each is a sentence for the user: what was given, what would be valid, what to do."""


class StudyError(ValueError):
    """What the user can put right: a folder that is no study, a version we cannot read, an output not writable."""
