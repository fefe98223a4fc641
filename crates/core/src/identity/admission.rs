//! Admission of a request for an identity: by its token, and by the nonce of earlier requests.

use tombolo_api::auth::{Confidential, Refusal};

use super::Record;

/// The accepted tokens.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// The token for all clusters. Empty: none.
    pub everybody: Confidential,
    /// The token for the requesting cluster only. Empty: none.
    pub this_cluster: Confidential,
    /// Whether requests need no token.
    pub none_needed: bool,
}

impl Tokens {
    /// Checks the token of a request.
    pub fn admit(&self, shown: &Confidential) -> Result<(), Refusal> {
        // Both comparisons always run, in constant time.
        let (everybody, own) = (*shown == self.everybody, *shown == self.this_cluster);
        match (self.none_needed, shown.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::EmptyTokenRefused),
            (false, false) if everybody | own => Ok(()),
            (false, false) => Err(Refusal::WrongToken),
        }
    }
}

/// Outcome for a cluster id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The first request of this cluster.
    New,
    /// The cluster has an identity and requests it again.
    Again,
    /// The cluster id belongs to somebody else, as far as can be proved.
    Taken,
}

/// Compares a request with the record of that cluster id. Only the same nonce proves that it is the
/// same cluster.
pub fn admit(recorded: Option<&Record>, request: &Record) -> Admission {
    let Some(recorded) = recorded else { return Admission::New };
    match (&recorded.nonce_hash, &request.nonce_hash) {
        (Some(recorded), Some(given)) if recorded == given => Admission::Again,
        _ => Admission::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(nonce: Option<&str>) -> Record {
        let request = serde_json::json!({ "clusterID": "cluster-1", "nonce": nonce });
        Record::of(&serde_json::from_value(request).unwrap(), "1".to_owned())
    }

    fn text(text: &str) -> Confidential {
        text.to_owned().into()
    }

    #[test]
    fn the_common_token_and_that_of_the_cluster_are_accepted() {
        let tokens =
            Tokens { everybody: text("all"), this_cluster: text("own"), none_needed: false };
        assert_eq!(tokens.admit(&text("all")), Ok(()));
        assert_eq!(tokens.admit(&text("own")), Ok(()));
        assert_eq!(tokens.admit(&text("other")), Err(Refusal::WrongToken));
        assert_eq!(tokens.admit(&text("")), Err(Refusal::EmptyTokenRefused));
    }

    #[test]
    fn a_missing_token_matches_nothing() {
        assert_eq!(Tokens::default().admit(&text("")), Err(Refusal::EmptyTokenRefused));
        assert_eq!(Tokens::default().admit(&text("x")), Err(Refusal::WrongToken));
    }

    #[test]
    fn without_a_required_token_any_token_is_accepted() {
        let tokens = Tokens { none_needed: true, ..Tokens::default() };
        assert_eq!(tokens.admit(&text("")), Ok(()));
        assert_eq!(tokens.admit(&text("x")), Ok(()));
    }

    #[test]
    fn a_repeated_request_needs_the_same_nonce() {
        let (first, other, none) = (record(Some("a")), record(Some("b")), record(None));
        assert_eq!(admit(None, &first), Admission::New);
        assert_eq!(admit(None, &none), Admission::New);
        assert_eq!(admit(Some(&first), &first), Admission::Again);
        assert_eq!(admit(Some(&first), &other), Admission::Taken);
        assert_eq!(admit(Some(&first), &none), Admission::Taken);
        assert_eq!(admit(Some(&none), &first), Admission::Taken);
        assert_eq!(admit(Some(&none), &none), Admission::Taken);
    }
}
