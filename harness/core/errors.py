"""The exception for errors that the user can fix."""


class UserError(ValueError):
    """An invalid request. The message is one sentence: what was given, what is valid, what to do.

    The command line prints it without a traceback and exits with code 2.
    """
