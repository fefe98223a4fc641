//! Obstacles on the way to an identity: their place in the status of a ForeignCluster, and what to do.

use tombolo_api::{
    auth::Refusal,
    discovery::{AuthStatus, condition::WRONG_TOKEN},
    names::{AUTH_TOKEN_KEY, AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, NAMESPACE},
};

use crate::discovery::PinnedBy;

/// Why a cluster's auth service has issued no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It wants a token, and was shown none.
    EmptyToken,
    /// It does not take the token.
    WrongToken,
    /// It has given this cluster's id an identity for another nonce.
    IdentityTaken,
    /// It has the same name as this cluster.
    SameName,
    /// It has failed.
    Failed,
    /// It shows another certificate than the expected one.
    OtherCertificate,
    /// Its answer is not that of an auth service.
    NotAnAuthService,
    /// It can't be reached.
    Unreachable,
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::EmptyTokenRefused => Self::EmptyToken,
            Refusal::WrongToken => Self::WrongToken,
            Refusal::IdentityTaken => Self::IdentityTaken,
            Refusal::SameName => Self::SameName,
            Refusal::Other | Refusal::OtherGeneration => Self::Failed,
        }
    }
}

impl Obstacle {
    /// The reason in the condition Authenticated.
    pub fn reason(self) -> &'static str {
        match self {
            Self::EmptyToken => "EmptyTokenRefused",
            Self::WrongToken => WRONG_TOKEN,
            Self::IdentityTaken => "IdentityTaken",
            Self::SameName => "SameName",
            Self::Failed => "AuthFailed",
            Self::OtherCertificate => "OtherCertificate",
            Self::NotAnAuthService => "NotAnAuthService",
            Self::Unreachable => "AuthUnreachable",
        }
    }

    /// The authentication status.
    pub fn status(self) -> AuthStatus {
        match self {
            Self::EmptyToken => AuthStatus::EmptyRefused,
            Self::WrongToken | Self::IdentityTaken | Self::SameName => AuthStatus::Refused,
            Self::Failed | Self::OtherCertificate | Self::NotAnAuthService | Self::Unreachable => {
                AuthStatus::Pending
            }
        }
    }

    /// Whether a retry soon may succeed.
    pub fn may_go(self) -> bool {
        self.status() == AuthStatus::Pending
    }

    /// Advice for the user, appended to the message of the condition. `pinned_by`: the source of
    /// the pinned certificate.
    pub fn advice(self, pinned_by: Option<PinnedBy>) -> Option<String> {
        match self {
            Self::EmptyToken | Self::WrongToken => Some(format!(
                "put it in a Secret in this cluster's namespace {NAMESPACE}, key {AUTH_TOKEN_KEY}, \
                 with the labels {CLUSTER_ID_LABEL}=<the cluster's id> and {AUTH_TOKEN_LABEL}="
            )),
            Self::OtherCertificate => {
                let that = pinned_by.unwrap_or(PinnedBy::FirstUse).that();
                Some(format!("expected the certificate that {that}"))
            }
            Self::IdentityTaken
            | Self::SameName
            | Self::Failed
            | Self::NotAnAuthService
            | Self::Unreachable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_wants_a_token_is_told_where_to_put_it() {
        for refusal in [Refusal::EmptyTokenRefused, Refusal::WrongToken] {
            let advice = Obstacle::from(refusal).advice(None).unwrap();
            for part in ["namespace liqo", "key token", "liqo.io/cluster-id="] {
                assert!(advice.contains(part), "{part:?} is not in {advice}");
            }
        }
        assert_eq!(Obstacle::from(Refusal::Other).advice(None), None);
    }

    #[test]
    fn the_expected_certificate_is_named_by_its_origin() {
        let advice = Obstacle::OtherCertificate.advice(Some(PinnedBy::Hand)).unwrap();
        assert_eq!(advice, "expected the certificate that a user has set in spec.fingerprint");
    }

    #[test]
    fn a_refusal_stays_until_somebody_acts_and_a_failure_does_not() {
        use Obstacle::{
            EmptyToken, Failed, IdentityTaken, NotAnAuthService, OtherCertificate, SameName,
            Unreachable, WrongToken,
        };
        for obstacle in [EmptyToken, WrongToken, IdentityTaken, SameName] {
            assert!(!obstacle.may_go(), "{obstacle:?}");
        }
        for obstacle in [Failed, OtherCertificate, NotAnAuthService, Unreachable] {
            assert!(obstacle.may_go(), "{obstacle:?}");
        }
        assert_eq!(EmptyToken.status(), AuthStatus::EmptyRefused);
        assert_eq!(WrongToken.status(), AuthStatus::Refused);
    }
}
