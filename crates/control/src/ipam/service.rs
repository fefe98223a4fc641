//! The address service over gRPC.

use std::{fmt::Display, net::IpAddr, str::FromStr};

use jiff::Timestamp;
use tombolo_api::{
    ClusterId,
    ipam::{
        Failure, GetHomePodIpBatchRequest, GetHomePodIpBatchResponse, GetHomePodIpRequest,
        GetHomePodIpResponse, GetHomePodIpResult, GetRemotePodIpBatchRequest,
        GetRemotePodIpBatchResponse, GetRemotePodIpRequest, GetRemotePodIpResponse,
        GetRemotePodIpResult, ListRequest, ListResponse, MAX_BATCH, MapBatchRequest,
        MapBatchResponse, MapRequest, MapResponse, MapResult, UnmapBatchRequest,
        UnmapBatchResponse, UnmapRequest, UnmapResponse, UnmapResult, get_home_pod_ip_result,
        get_remote_pod_ip_result, ipam_server, map_result, unmap_result,
    },
};
use tombolo_core::ipam::{IpamError, IpamState, MappingOwner};
use tombolo_runtime::lease::Leading;
use tonic::{Code, Request, Response, Status};

use super::{AddressService, AskError};

pub(super) struct Service {
    ipam: AddressService,
    leading: Leading,
}

impl Service {
    pub(super) fn new(ipam: AddressService, leading: Leading) -> Self {
        Self { ipam, leading }
    }

    /// Submits a request if this replica leads. Checks again before the answer: a former leader
    /// must neither write nor return old state.
    async fn submit<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut IpamState, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.check_leading()?;
        let answer = self.ipam.submit(act).await.map_err(|error| status(&error));
        self.check_leading()?;
        answer
    }

    fn check_leading(&self) -> Result<(), Status> {
        match self.leading.is_over() {
            true => Err(Status::unavailable("this replica is not the leader any more: try again")),
            false => Ok(()),
        }
    }

    async fn one<T: Send + 'static>(&self, raw: RawRequest, act: Act<T>) -> Result<T, Status> {
        let endpoint = parse(raw)?;
        let answer = self.submit(move |state, now| answer(state, now, &endpoint, act)).await?;
        answer.map_err(|error| refused(&error))
    }

    /// Submits a batch as one request to the owner of the state, so that it is stored together.
    async fn many<T: Send + 'static>(
        &self,
        raw: impl ExactSizeIterator<Item = RawRequest>,
        act: Act<T>,
    ) -> Result<Vec<Result<T, Status>>, Status> {
        if raw.len() > MAX_BATCH {
            let why = format!("requests: {} are too many, the maximum is {MAX_BATCH}", raw.len());
            return Err(Status::invalid_argument(why));
        }
        let raw: Vec<_> = raw.map(parse).collect();
        let all = move |state: &mut IpamState, now| {
            let one = |raw: Result<Endpoint, Status>| {
                answer(state, now, &raw?, act).map_err(|error| refused(&error))
            };
            raw.into_iter().map(one).collect::<Vec<_>>()
        };
        self.submit(all).await
    }
}

#[tonic::async_trait]
impl ipam_server::Ipam for Service {
    async fn map_endpoint_ip(&self, request: Request<MapRequest>) -> Answer<MapResponse> {
        let MapRequest { cluster_id, ip, owner } = request.into_inner();
        let ip = self.one(RawRequest { cluster_id, ip, owner }, map).await?;
        Ok(Response::new(MapResponse { ip }))
    }

    async fn unmap_endpoint_ip(&self, request: Request<UnmapRequest>) -> Answer<UnmapResponse> {
        let UnmapRequest { cluster_id, ip, owner } = request.into_inner();
        self.one(RawRequest { cluster_id, ip, owner }, unmap).await?;
        Ok(Response::new(UnmapResponse {}))
    }

    async fn list_mapped_endpoints(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        let ListRequest { cluster_id, owner, page_token } = request.into_inner();
        let cluster: ClusterId = field("clusterID", &cluster_id, |_, error| format!("{error}"))?;
        let owner = parse_owner(owner)?;
        let after: Option<IpAddr> = match page_token.as_str() {
            "" => None,
            token => Some(field("pageToken", token, |_, _| {
                "must be the nextPageToken of a previous answer".to_owned()
            })?),
        };
        let list = move |state: &mut IpamState, _| match state.subnets(&cluster) {
            Some(_) => Ok(state.endpoints_of(&owner, &cluster, after, MAX_BATCH)),
            None => Err(IpamError::UnknownCluster(cluster)),
        };
        let ips = self.submit(list).await?.map_err(|error| refused(&error))?;
        let last = ips.last().filter(|_| ips.len() == MAX_BATCH);
        let next_page_token = last.map(IpAddr::to_string).unwrap_or_default();
        let ips = ips.iter().map(IpAddr::to_string).collect();
        Ok(Response::new(ListResponse { ips, next_page_token }))
    }

    async fn get_remote_pod_ip(
        &self,
        request: Request<GetRemotePodIpRequest>,
    ) -> Answer<GetRemotePodIpResponse> {
        let GetRemotePodIpRequest { cluster_id, ip } = request.into_inner();
        let remote_ip = self.one(RawRequest { cluster_id, ip, owner: None }, remote).await?;
        Ok(Response::new(GetRemotePodIpResponse { remote_ip }))
    }

    async fn get_home_pod_ip(
        &self,
        request: Request<GetHomePodIpRequest>,
    ) -> Answer<GetHomePodIpResponse> {
        let GetHomePodIpRequest { cluster_id, ip } = request.into_inner();
        let home_ip = self.one(RawRequest { cluster_id, ip, owner: None }, home).await?;
        Ok(Response::new(GetHomePodIpResponse { home_ip }))
    }

    async fn map_endpoint_ip_batch(
        &self,
        request: Request<MapBatchRequest>,
    ) -> Answer<MapBatchResponse> {
        let raw = request.into_inner().requests.into_iter();
        let raw =
            raw.map(|it| RawRequest { cluster_id: it.cluster_id, ip: it.ip, owner: it.owner });
        let results = self.many(raw, map).await?.into_iter().map(|result| {
            let result = match result {
                Ok(ip) => map_result::Result::Response(MapResponse { ip }),
                Err(status) => map_result::Result::Failure(failure(&status)),
            };
            MapResult { result: Some(result) }
        });
        Ok(Response::new(MapBatchResponse { results: results.collect() }))
    }

    async fn unmap_endpoint_ip_batch(
        &self,
        request: Request<UnmapBatchRequest>,
    ) -> Answer<UnmapBatchResponse> {
        let raw = request.into_inner().requests.into_iter();
        let raw =
            raw.map(|it| RawRequest { cluster_id: it.cluster_id, ip: it.ip, owner: it.owner });
        let results = self.many(raw, unmap).await?.into_iter().map(|result| {
            let result = match result {
                Ok(()) => unmap_result::Result::Response(UnmapResponse {}),
                Err(status) => unmap_result::Result::Failure(failure(&status)),
            };
            UnmapResult { result: Some(result) }
        });
        Ok(Response::new(UnmapBatchResponse { results: results.collect() }))
    }

    async fn get_remote_pod_ip_batch(
        &self,
        request: Request<GetRemotePodIpBatchRequest>,
    ) -> Answer<GetRemotePodIpBatchResponse> {
        use get_remote_pod_ip_result::Result::{Failure, Response as Found};
        let raw = request.into_inner().requests.into_iter();
        let raw = raw.map(|it| RawRequest { cluster_id: it.cluster_id, ip: it.ip, owner: None });
        let results = self.many(raw, remote).await?.into_iter().map(|result| {
            let result = match result {
                Ok(remote_ip) => Found(GetRemotePodIpResponse { remote_ip }),
                Err(status) => Failure(failure(&status)),
            };
            GetRemotePodIpResult { result: Some(result) }
        });
        Ok(Response::new(GetRemotePodIpBatchResponse { results: results.collect() }))
    }

    async fn get_home_pod_ip_batch(
        &self,
        request: Request<GetHomePodIpBatchRequest>,
    ) -> Answer<GetHomePodIpBatchResponse> {
        use get_home_pod_ip_result::Result::{Failure, Response as Found};
        let raw = request.into_inner().requests.into_iter();
        let raw = raw.map(|it| RawRequest { cluster_id: it.cluster_id, ip: it.ip, owner: None });
        let results = self.many(raw, home).await?.into_iter().map(|result| {
            let result = match result {
                Ok(home_ip) => Found(GetHomePodIpResponse { home_ip }),
                Err(status) => Failure(failure(&status)),
            };
            GetHomePodIpResult { result: Some(result) }
        });
        Ok(Response::new(GetHomePodIpBatchResponse { results: results.collect() }))
    }
}

/// Characters of a field in an error message. Cluster ids and addresses are shorter.
const MAX_FIELD: usize = 80;

type Answer<T> = Result<Response<T>, Status>;
type Act<T> = fn(&mut IpamState, Timestamp, &Endpoint) -> Result<T, IpamError>;

/// The unparsed fields of a request.
struct RawRequest {
    cluster_id: String,
    ip: String,
    owner: Option<String>,
}

/// An endpoint, the cluster to map it for, and the owner of the mapping.
struct Endpoint {
    cluster: ClusterId,
    ip: IpAddr,
    owner: MappingOwner,
}

/// Checks cluster and address family, and applies a request.
fn answer<T>(
    state: &mut IpamState,
    now: Timestamp,
    endpoint: &Endpoint,
    act: Act<T>,
) -> Result<T, IpamError> {
    state.check_family(&endpoint.cluster, endpoint.ip)?;
    act(state, now, endpoint)
}

fn map(state: &mut IpamState, now: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    let mapped = state.map_endpoint_for(&it.owner, &it.cluster, it.ip, now);
    mapped.map(|ip| ip.to_string())
}

fn unmap(state: &mut IpamState, now: Timestamp, it: &Endpoint) -> Result<(), IpamError> {
    state.unmap_endpoint_for(&it.owner, &it.cluster, it.ip, now);
    Ok(())
}

fn remote(state: &mut IpamState, _: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    state.remote_pod_ip(&it.cluster, it.ip).map(|ip| ip.to_string())
}

fn home(state: &mut IpamState, _: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    state.home_pod_ip(&it.cluster, it.ip).map(|ip| ip.to_string())
}

fn parse(raw: RawRequest) -> Result<Endpoint, Status> {
    let cluster = field("clusterID", &raw.cluster_id, |_, error| format!("{error}"))?;
    let ip: IpAddr = field("ip", &raw.ip, |text, _| format!("{text:?} is not an address"))?;
    Ok(Endpoint { cluster, ip: ip.to_canonical(), owner: parse_owner(raw.owner)? })
}

fn parse_owner(owner: Option<String>) -> Result<MappingOwner, Status> {
    field("owner", &owner.unwrap_or_default(), |_, error| format!("{error}"))
}

fn field<T: FromStr<Err: Display>>(
    name: &str,
    text: &str,
    why: impl Fn(&str, T::Err) -> String,
) -> Result<T, Status> {
    // Longer values are invalid anyway, and an error has to fit into a header.
    let end = text.char_indices().nth(MAX_FIELD).map_or(text.len(), |(end, _)| end);
    let text = &text[..end];
    text.parse().map_err(|error| Status::invalid_argument(format!("{name}: {}", why(text, error))))
}

fn status(error: &AskError) -> Status {
    match error {
        AskError::Refused(error) => refused(error),
        AskError::NotStored | AskError::Ended => Status::unavailable(error.to_string()),
    }
}

fn refused(error: &IpamError) -> Status {
    let code = match error {
        IpamError::UnknownCluster(_)
        | IpamError::NotMapped { .. }
        | IpamError::NotAPodThere { .. }
        | IpamError::PeerGone { .. } => Code::NotFound,
        IpamError::LocalTranslationUnknown(_) => Code::Unavailable,
        IpamError::NotAnEndpoint { .. } | IpamError::WrongSize(_) => Code::InvalidArgument,
        IpamError::NotExternal(_) => Code::Internal,
        IpamError::ExternalFull { .. }
        | IpamError::TooManyOwners(_)
        | IpamError::NoRoom { .. }
        | IpamError::TooManyTranslatedCidrs { .. } => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

fn failure(status: &Status) -> Failure {
    Failure { code: status.code().into(), message: status.message().to_owned() }
}
