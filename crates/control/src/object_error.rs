//! An object of the API server with which something could not be done.

use std::fmt;

/// What failed, on which object. It is tried again.
#[derive(Debug)]
pub(crate) struct ObjectError {
    act: &'static str,
    /// Empty for objects of the whole cluster.
    namespace: String,
    /// Empty for all objects of the namespace.
    name: String,
    source: Box<kube::Error>,
}

/// Makes the error of an act, for `map_err`.
pub(crate) fn failed(
    act: &'static str,
    namespace: &str,
    name: &str,
) -> impl FnOnce(kube::Error) -> ObjectError + use<> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    move |source| ObjectError { act, namespace, name, source: Box::new(source) }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { act, namespace, name, .. } = self;
        match (namespace.as_str(), name.as_str()) {
            ("", name) => write!(f, "{act} {name}"),
            (namespace, "") => write!(f, "{act} in {namespace}"),
            (namespace, name) => write!(f, "{act} {namespace}/{name}"),
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
        let said = |namespace, name| {
            let error =
                failed("read Pod", namespace, name)(kube::Error::LinesCodecMaxLineLengthExceeded);
            Chain(&error).to_string()
        };
        let cause = kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(said("shop", "web"), format!("read Pod shop/web: {cause}"));
        assert_eq!(said("", "web"), format!("read Pod web: {cause}"));
        assert_eq!(said("shop", ""), format!("read Pod in shop: {cause}"));
    }
}
