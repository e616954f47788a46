"""The one exception that means: the person at the keyboard can mend this."""


class UserError(ValueError):
    """A mistake in what was asked for. Its text is one sentence: what was given, what is valid, what to do.

    The command line prints it without a traceback and exits with code 2.
    """
