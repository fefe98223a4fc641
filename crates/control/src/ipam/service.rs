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
use tombolo_core::ipam::{Ipam as State, IpamError, MappingOwner};
use tombolo_runtime::lease::Leading;
use tonic::{Code, Request, Response, Status};

use super::{AskError, Ipam};

pub(super) struct Service {
    ipam: Ipam,
    leading: Leading,
}

impl Service {
    pub(super) fn new(ipam: Ipam, leading: Leading) -> Self {
        Self { ipam, leading }
    }

    /// What the state says, by the one who leads: one that was deposed neither begins to write nor
    /// tells what may be old.
    async fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.check_term()?;
        let answer = self.ipam.ask(act).await.map_err(|error| status(&error));
        self.check_term()?;
        answer
    }

    fn check_term(&self) -> Result<(), Status> {
        match self.leading.is_over() {
            true => Err(Status::unavailable("this replica does not lead any more: try again")),
            false => Ok(()),
        }
    }

    async fn one<T: Send + 'static>(&self, asked: Asked, act: Act<T>) -> Result<T, Status> {
        let endpoint = parse(asked)?;
        let answer = self.ask(move |state, now| answer(state, now, &endpoint, act)).await?;
        answer.map_err(|error| refused(&error))
    }

    /// All in one request to the owner of the state, so that they are stored together.
    async fn many<T: Send + 'static>(
        &self,
        asked: impl ExactSizeIterator<Item = Asked>,
        act: Act<T>,
    ) -> Result<Vec<Result<T, Status>>, Status> {
        if asked.len() > MAX_BATCH {
            let why = format!("requests: {} are too many, {MAX_BATCH} may be", asked.len());
            return Err(Status::invalid_argument(why));
        }
        let asked: Vec<_> = asked.map(parse).collect();
        let all = move |state: &mut State, now| {
            let one = |asked: Result<Endpoint, Status>| {
                answer(state, now, &asked?, act).map_err(|error| refused(&error))
            };
            asked.into_iter().map(one).collect::<Vec<_>>()
        };
        self.ask(all).await
    }
}

#[tonic::async_trait]
impl ipam_server::Ipam for Service {
    async fn map_endpoint_ip(&self, request: Request<MapRequest>) -> Answer<MapResponse> {
        let MapRequest { cluster_id, ip, owner } = request.into_inner();
        let ip = self.one(Asked { cluster_id, ip, owner }, map).await?;
        Ok(Response::new(MapResponse { ip }))
    }

    async fn unmap_endpoint_ip(&self, request: Request<UnmapRequest>) -> Answer<UnmapResponse> {
        let UnmapRequest { cluster_id, ip, owner } = request.into_inner();
        self.one(Asked { cluster_id, ip, owner }, unmap).await?;
        Ok(Response::new(UnmapResponse {}))
    }

    async fn list_mapped_endpoints(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        let ListRequest { cluster_id, owner, page_token } = request.into_inner();
        let cluster: ClusterId = field("clusterID", &cluster_id, |_, error| format!("{error}"))?;
        let owner = parse_owner(owner)?;
        let after: Option<IpAddr> = match page_token.as_str() {
            "" => None,
            token => Some(field("pageToken", token, |_, _| "it is from no answer".to_owned())?),
        };
        let list = move |state: &mut State, _| match state.subnets(&cluster) {
            Some(_) => Ok(state.endpoints_of(&owner, &cluster, after, MAX_BATCH)),
            None => Err(IpamError::UnknownCluster(cluster)),
        };
        let ips = self.ask(list).await?.map_err(|error| refused(&error))?;
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
        let remote_ip = self.one(Asked { cluster_id, ip, owner: None }, remote).await?;
        Ok(Response::new(GetRemotePodIpResponse { remote_ip }))
    }

    async fn get_home_pod_ip(
        &self,
        request: Request<GetHomePodIpRequest>,
    ) -> Answer<GetHomePodIpResponse> {
        let GetHomePodIpRequest { cluster_id, ip } = request.into_inner();
        let home_ip = self.one(Asked { cluster_id, ip, owner: None }, home).await?;
        Ok(Response::new(GetHomePodIpResponse { home_ip }))
    }

    async fn map_endpoint_ip_batch(
        &self,
        request: Request<MapBatchRequest>,
    ) -> Answer<MapBatchResponse> {
        let asked = request.into_inner().requests.into_iter();
        let asked = asked.map(|it| Asked { cluster_id: it.cluster_id, ip: it.ip, owner: it.owner });
        let results = self.many(asked, map).await?.into_iter().map(|result| {
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
        let asked = request.into_inner().requests.into_iter();
        let asked = asked.map(|it| Asked { cluster_id: it.cluster_id, ip: it.ip, owner: it.owner });
        let results = self.many(asked, unmap).await?.into_iter().map(|result| {
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
        let asked = request.into_inner().requests.into_iter();
        let asked = asked.map(|it| Asked { cluster_id: it.cluster_id, ip: it.ip, owner: None });
        let results = self.many(asked, remote).await?.into_iter().map(|result| {
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
        let asked = request.into_inner().requests.into_iter();
        let asked = asked.map(|it| Asked { cluster_id: it.cluster_id, ip: it.ip, owner: None });
        let results = self.many(asked, home).await?.into_iter().map(|result| {
            let result = match result {
                Ok(home_ip) => Found(GetHomePodIpResponse { home_ip }),
                Err(status) => Failure(failure(&status)),
            };
            GetHomePodIpResult { result: Some(result) }
        });
        Ok(Response::new(GetHomePodIpBatchResponse { results: results.collect() }))
    }
}

/// Characters, more than a cluster id or an address has.
const MAX_FIELD: usize = 80;

type Answer<T> = Result<Response<T>, Status>;
type Act<T> = fn(&mut State, Timestamp, &Endpoint) -> Result<T, IpamError>;

/// What is asked for, as it came.
struct Asked {
    cluster_id: String,
    ip: String,
    owner: Option<String>,
}

/// An endpoint, the cluster that it is, or is to be, reflected to, and who asks.
struct Endpoint {
    cluster: ClusterId,
    ip: IpAddr,
    owner: MappingOwner,
}

/// The answer to whatever may be asked for this cluster and this address.
fn answer<T>(
    state: &mut State,
    now: Timestamp,
    endpoint: &Endpoint,
    act: Act<T>,
) -> Result<T, IpamError> {
    state.check_family(&endpoint.cluster, endpoint.ip)?;
    act(state, now, endpoint)
}

fn map(state: &mut State, now: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    let mapped = state.map_endpoint_for(&it.owner, &it.cluster, it.ip, now);
    mapped.map(|ip| ip.to_string())
}

fn unmap(state: &mut State, now: Timestamp, it: &Endpoint) -> Result<(), IpamError> {
    state.unmap_endpoint_for(&it.owner, &it.cluster, it.ip, now);
    Ok(())
}

fn remote(state: &mut State, _: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    state.remote_pod_ip(&it.cluster, it.ip).map(|ip| ip.to_string())
}

fn home(state: &mut State, _: Timestamp, it: &Endpoint) -> Result<String, IpamError> {
    state.home_pod_ip(&it.cluster, it.ip).map(|ip| ip.to_string())
}

fn parse(asked: Asked) -> Result<Endpoint, Status> {
    let cluster = field("clusterID", &asked.cluster_id, |_, error| format!("{error}"))?;
    let ip: IpAddr = field("ip", &asked.ip, |text, _| format!("{text:?} is not an address"))?;
    Ok(Endpoint { cluster, ip: ip.to_canonical(), owner: parse_owner(asked.owner)? })
}

fn parse_owner(owner: Option<String>) -> Result<MappingOwner, Status> {
    field("owner", &owner.unwrap_or_default(), |_, error| format!("{error}"))
}

fn field<T: FromStr<Err: Display>>(
    name: &str,
    text: &str,
    why: impl Fn(&str, T::Err) -> String,
) -> Result<T, Status> {
    // What is longer is wrong anyway, and an error has to fit into a header.
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
        IpamError::NameUnknown(_) => Code::Unavailable,
        IpamError::NotAnEndpoint { .. } | IpamError::WrongSize(_) => Code::InvalidArgument,
        IpamError::NotExternal(_) => Code::Internal,
        IpamError::ExternalFull { .. }
        | IpamError::TooManyOwners(_)
        | IpamError::NoRoom { .. }
        | IpamError::TooManyNames { .. } => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

fn failure(status: &Status) -> Failure {
    Failure { code: status.code().into(), message: status.message().to_owned() }
}
