//! Asks another cluster for an identity: for a certificate first, and for a token where its auth
//! service knows of no certificates.

use http::StatusCode;
use kube::Client;
use tombolo_api::{
    ClusterIdentity,
    auth::{Confidential, IdentityRequest, IdentityResponse},
};
use tombolo_core::identity::{Subject, is_generation};
use tracing::debug;

use super::{
    Error,
    auth_service::{AuthService, Failure},
    own_key,
    stored::Stored,
};

/// The generation that is asked for until the other cluster has named the right one.
const FIRST_GENERATION: &str = "0";

/// What is needed to ask.
pub(super) struct Asking<'a> {
    pub client: &'a Client,
    pub service: &'a AuthService,
    /// Our tenant namespace for that cluster.
    pub tenant: &'a str,
    pub peer: &'a ClusterIdentity,
}

impl Asking<'_> {
    /// Asks once with what is in `request`. The key of the certificate is kept in `stored`, in the
    /// API server before anything is sent: should the answer be lost, it can be asked for again.
    pub async fn ask(
        &self,
        request: &IdentityRequest,
        stored: &mut Stored,
    ) -> Result<Result<IdentityResponse, Failure>, Error> {
        let key = self.key(stored).await?;
        let mut answer = self.certificate(request, stored, &key).await?;
        if let Err(Failure::Refused { error, .. }) = &answer
            && let Some(generation) = &error.generation
            && stored.generation.as_ref() != Some(generation)
            && is_generation(generation)
        {
            stored.generation = Some(generation.clone());
            answer = self.certificate(request, stored, &key).await?;
        }
        if let Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) = &answer {
            debug!(cluster = %self.peer.cluster_name, "it knows of no certificates");
            answer = self.service.identity(request).await;
        }
        Ok(answer)
    }

    async fn certificate(
        &self,
        request: &IdentityRequest,
        stored: &Stored,
        key: &Confidential,
    ) -> Result<Result<IdentityResponse, Failure>, Error> {
        let generation = stored.generation.clone();
        let subject = Subject {
            cluster_id: request.cluster_id.clone(),
            generation: generation.unwrap_or_else(|| FIRST_GENERATION.to_owned()),
        };
        let signing_request = Some(own_key::signing_request(key, &subject)?);
        let request = IdentityRequest { signing_request, ..request.clone() };
        Ok(self.service.certificate(&request).await)
    }

    async fn key(&self, stored: &mut Stored) -> Result<Confidential, Error> {
        if let Some(key) = &stored.next_key {
            return Ok(key.clone());
        }
        let key = own_key::make()?;
        stored.next_key = Some(key.clone());
        stored.write(self.client, self.tenant, self.peer).await?;
        Ok(key)
    }
}
