//! The address service over gRPC.

use std::{fmt::Display, net::IpAddr, str::FromStr};

use jiff::Timestamp;
use tombolo_api::{
    ClusterId,
    ipam::{
        Failure, GetHomePodIpBatchRequest, GetHomePodIpBatchResponse, GetHomePodIpRequest,
        GetHomePodIpResponse, GetHomePodIpResult, GetRemotePodIpBatchRequest,
        GetRemotePodIpBatchResponse, GetRemotePodIpRequest, GetRemotePodIpResponse,
        GetRemotePodIpResult, MAX_BATCH, MapBatchRequest, MapBatchResponse, MapRequest,
        MapResponse, MapResult, UnmapBatchRequest, UnmapBatchResponse, UnmapRequest, UnmapResponse,
        UnmapResult, get_home_pod_ip_result, get_remote_pod_ip_result, ipam_server, map_result,
        unmap_result,
    },
};
use tombolo_core::ipam::{Ipam as State, IpamError};
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

    async fn one<T: Send + 'static>(
        &self,
        asked: (String, String),
        act: Act<T>,
    ) -> Result<T, Status> {
        let (cluster, ip) = parse(asked)?;
        let answer = self.ask(move |state, now| answer(state, now, (&cluster, ip), act)).await?;
        answer.map_err(|error| refused(&error))
    }

    /// All in one request to the owner of the state, so that they are stored together.
    async fn many<T: Send + 'static>(
        &self,
        asked: impl ExactSizeIterator<Item = (String, String)>,
        act: Act<T>,
    ) -> Result<Vec<Result<T, Status>>, Status> {
        if asked.len() > MAX_BATCH {
            let why = format!("requests: {} are too many, {MAX_BATCH} may be", asked.len());
            return Err(Status::invalid_argument(why));
        }
        let asked: Vec<_> = asked.map(parse).collect();
        let all = move |state: &mut State, now| {
            let one = |asked: Result<(ClusterId, IpAddr), Status>| {
                let (cluster, ip) = asked?;
                answer(state, now, (&cluster, ip), act).map_err(|error| refused(&error))
            };
            asked.into_iter().map(one).collect::<Vec<_>>()
        };
        self.ask(all).await
    }
}

#[tonic::async_trait]
impl ipam_server::Ipam for Service {
    async fn map_endpoint_ip(&self, request: Request<MapRequest>) -> Answer<MapResponse> {
        let MapRequest { cluster_id, ip } = request.into_inner();
        let ip = self.one((cluster_id, ip), map).await?;
        Ok(Response::new(MapResponse { ip }))
    }

    async fn unmap_endpoint_ip(&self, request: Request<UnmapRequest>) -> Answer<UnmapResponse> {
        let UnmapRequest { cluster_id, ip } = request.into_inner();
        self.one((cluster_id, ip), unmap).await?;
        Ok(Response::new(UnmapResponse {}))
    }

    async fn get_remote_pod_ip(
        &self,
        request: Request<GetRemotePodIpRequest>,
    ) -> Answer<GetRemotePodIpResponse> {
        let GetRemotePodIpRequest { cluster_id, ip } = request.into_inner();
        let remote_ip = self.one((cluster_id, ip), remote).await?;
        Ok(Response::new(GetRemotePodIpResponse { remote_ip }))
    }

    async fn get_home_pod_ip(
        &self,
        request: Request<GetHomePodIpRequest>,
    ) -> Answer<GetHomePodIpResponse> {
        let GetHomePodIpRequest { cluster_id, ip } = request.into_inner();
        let home_ip = self.one((cluster_id, ip), home).await?;
        Ok(Response::new(GetHomePodIpResponse { home_ip }))
    }

    async fn map_endpoint_ip_batch(
        &self,
        request: Request<MapBatchRequest>,
    ) -> Answer<MapBatchResponse> {
        let asked = request.into_inner().requests.into_iter().map(|it| (it.cluster_id, it.ip));
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
        let asked = request.into_inner().requests.into_iter().map(|it| (it.cluster_id, it.ip));
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
        let asked = request.into_inner().requests.into_iter().map(|it| (it.cluster_id, it.ip));
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
        let asked = request.into_inner().requests.into_iter().map(|it| (it.cluster_id, it.ip));
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
type Act<T> = fn(&mut State, Timestamp, &ClusterId, IpAddr) -> Result<T, IpamError>;

/// The answer to whatever may be asked for this cluster and this address.
fn answer<T>(
    state: &mut State,
    now: Timestamp,
    (cluster, ip): (&ClusterId, IpAddr),
    act: Act<T>,
) -> Result<T, IpamError> {
    let subnets = state.subnets(cluster);
    let pods = subnets.and_then(|subnets| subnets.remote_pod_cidr);
    let pods = pods.ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
    if pods.net().network().is_ipv4() != ip.is_ipv4() {
        let why = "it is of another family than the networks of that cluster";
        return Err(IpamError::NotAnEndpoint { ip, why });
    }
    act(state, now, cluster, ip)
}

fn map(
    state: &mut State,
    now: Timestamp,
    cluster: &ClusterId,
    ip: IpAddr,
) -> Result<String, IpamError> {
    state.map_endpoint(cluster, ip, now).map(|ip| ip.to_string())
}

fn unmap(
    state: &mut State,
    now: Timestamp,
    cluster: &ClusterId,
    ip: IpAddr,
) -> Result<(), IpamError> {
    state.unmap_endpoint(cluster, ip, now);
    Ok(())
}

fn remote(
    state: &mut State,
    _: Timestamp,
    cluster: &ClusterId,
    ip: IpAddr,
) -> Result<String, IpamError> {
    state.remote_pod_ip(cluster, ip).map(|ip| ip.to_string())
}

fn home(
    state: &mut State,
    _: Timestamp,
    cluster: &ClusterId,
    ip: IpAddr,
) -> Result<String, IpamError> {
    state.home_pod_ip(cluster, ip).map(|ip| ip.to_string())
}

fn parse((cluster, ip): (String, String)) -> Result<(ClusterId, IpAddr), Status> {
    let cluster = field("clusterID", &cluster, |_, error| format!("{error}"))?;
    let ip: IpAddr = field("ip", &ip, |text, _| format!("{text:?} is not an address"))?;
    Ok((cluster, ip.to_canonical()))
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
        | IpamError::NoRoom { .. }
        | IpamError::TooManyNames { .. } => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

fn failure(status: &Status) -> Failure {
    Failure { code: status.code().into(), message: status.message().to_owned() }
}
