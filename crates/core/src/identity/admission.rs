//! Whether a request for an identity is granted: by its token, and by who has asked before.

use tombolo_api::auth::{Confidential, Refusal};

use super::Record;

/// The tokens that count.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// The one for all clusters. An empty one is none.
    pub everybody: Confidential,
    /// The one for the cluster that asks.
    pub this_cluster: Confidential,
    /// Whether it takes none.
    pub none_needed: bool,
}

impl Tokens {
    /// Whether a cluster that shows this token may have an identity.
    pub fn admit(&self, shown: &Confidential) -> Result<(), Refusal> {
        // Both are always compared, in a time that does not tell how far they match.
        let (everybody, own) = (*shown == self.everybody, *shown == self.this_cluster);
        match (self.none_needed, shown.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::EmptyTokenRefused),
            (false, false) if everybody | own => Ok(()),
            (false, false) => Err(Refusal::WrongToken),
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The first of this cluster.
    New,
    /// The cluster has an identity and asks for it again.
    Again,
    /// The cluster id is somebody else's, as far as can be told.
    Taken,
}

/// What becomes of a request, given what is recorded of that cluster id. Without a nonce nobody
/// can show that it is the same cluster.
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
    fn the_token_for_all_and_the_one_for_this_cluster_count() {
        let tokens =
            Tokens { everybody: text("all"), this_cluster: text("own"), none_needed: false };
        assert_eq!(tokens.admit(&text("all")), Ok(()));
        assert_eq!(tokens.admit(&text("own")), Ok(()));
        assert_eq!(tokens.admit(&text("other")), Err(Refusal::WrongToken));
        assert_eq!(tokens.admit(&text("")), Err(Refusal::EmptyTokenRefused));
    }

    #[test]
    fn a_token_that_is_not_there_yet_matches_nothing() {
        assert_eq!(Tokens::default().admit(&text("")), Err(Refusal::EmptyTokenRefused));
        assert_eq!(Tokens::default().admit(&text("x")), Err(Refusal::WrongToken));
    }

    #[test]
    fn where_none_is_needed_any_will_do() {
        let tokens = Tokens { none_needed: true, ..Tokens::default() };
        assert_eq!(tokens.admit(&text("")), Ok(()));
        assert_eq!(tokens.admit(&text("x")), Ok(()));
    }

    #[test]
    fn who_asks_again_has_to_show_the_same_nonce() {
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
