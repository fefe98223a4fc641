//! The API that a kubelet has: logs, exec, port-forward.
