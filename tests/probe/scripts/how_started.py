"""Prints how it was started, starts a process of its own, and ends as it is told: to compare with Python itself."""

import atexit
import json
import multiprocessing
import pickle
import sys


class OfMain:
    pass


def child(queue, method):
    queue.put([__name__, method != "fork" and "_scaling_probe" in sys.modules, sys.argv])


def main():
    end, *methods = sys.argv[1:]
    atexit.register(print, "at exit", flush=True)
    told = {
        "argv": sys.argv,
        "path": sys.path[0],
        "names": sorted(name for name in globals() if name not in ("__annotations__", "__warningregistry__")),
        "file": __file__,
        "package": __package__,
        "cached": __cached__,
        "spec": __spec__ and __spec__.name,
        "pickled": type(pickle.loads(pickle.dumps(OfMain()))).__module__,
    }
    for method in methods:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue, method))
        process.start()
        told[method] = queue.get()
        process.join()
    print(json.dumps(told, indent=1))
    if end == "raise":
        raise KeyError("the user's own")
    if end == "interrupt":
        raise KeyboardInterrupt
    if end != "return":
        sys.exit(end if end == "text" else int(end))


if __name__ == "__main__":
    main()
