//! Answers the probes of the kubelet.
