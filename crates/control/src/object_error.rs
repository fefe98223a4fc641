//! Failed operations on objects of the API server.

use std::fmt;

/// A failed operation on an object. It is retried.
#[derive(Debug)]
pub(crate) struct ObjectError {
    operation: &'static str,
    /// Empty for cluster-scoped objects.
    namespace: String,
    /// Empty for all objects of the namespace.
    name: String,
    source: Box<kube::Error>,
}

/// Creates the error of an operation, for `map_err`.
pub(crate) fn failed(
    operation: &'static str,
    namespace: &str,
    name: &str,
) -> impl FnOnce(kube::Error) -> ObjectError + use<> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    move |source| ObjectError { operation, namespace, name, source: Box::new(source) }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, namespace, name, .. } = self;
        match (namespace.as_str(), name.as_str()) {
            ("", name) => write!(f, "{operation} {name}"),
            (namespace, "") => write!(f, "{operation} in {namespace}"),
            (namespace, name) => write!(f, "{operation} {namespace}/{name}"),
        }
    }
}

impl std::error::Error for ObjectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use tombolo_runtime::chain::Chain;

    use super::*;

    #[test]
    fn an_error_names_the_object_and_its_cause() {
        let text = |namespace, name| {
            let error =
                failed("read Pod", namespace, name)(kube::Error::LinesCodecMaxLineLengthExceeded);
            Chain(&error).to_string()
        };
        let cause = kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(text("shop", "web"), format!("read Pod shop/web: {cause}"));
        assert_eq!(text("", "web"), format!("read Pod web: {cause}"));
        assert_eq!(text("shop", ""), format!("read Pod in shop: {cause}"));
    }
}
