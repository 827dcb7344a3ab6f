"""The driver's logger. It writes every report to the text log and to the metrics file."""

from callbacks import LoggerCallback
from elog import ELog
from emetrics import EMetrics


class EDTLoggerCallback(LoggerCallback):
    def __init__(self):
        self.global_steps = 0
        self.epochs = 0

    def on_train_begin(self):
        self.elog = ELog.open()
        self.emetrics = EMetrics.open()

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        self.global_steps += 1
        self.elog.train(self.global_steps, completed_batch, loss, acc)
        self.emetrics.record(EMetrics.TRAIN_GROUP, self.global_steps, {"loss": loss, "accuracy": acc})

    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        self.epochs += 1
        self.elog.test(loss, acc)
        self.emetrics.record(EMetrics.TEST_GROUP, self.global_steps, {"loss": loss, "accuracy": acc})
        print(f"after epoch {self.epochs}: test loss {loss:.4f}, test accuracy {acc:.4f}", flush=True)

    def on_train_end(self):
        self.elog.close()
        self.emetrics.close()
