//! The rules of a network namespace, as somebody sees them who looks at any time.

use std::process::Command;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{GenAttribute, GenMessage, NfTablesMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use tombolo_dataplane::driver::netns::Netns;

/// Our table as `nft` shows it, which looks again when it was changed meanwhile.
pub fn table(netns: &Netns) -> Result<String, String> {
    let list = || Command::new("nft").args(["--stateless", "list", "table", "ip", "liqo"]).output();
    let output = netns.run(list).unwrap().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// The number of the generation of the rules: each transaction that succeeds begins the next.
pub fn generation(netns: &Netns) -> u32 {
    netns.run(ask_for_generation).unwrap()
}

fn ask_for_generation() -> u32 {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let question = NfTablesMessage::GetGen(GenMessage { attributes: Vec::new() });
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, question));
    message.header.flags = NLM_F_REQUEST;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).unwrap();
    let (bytes, _) = socket.recv_from_full().unwrap();
    let answer = NetlinkMessage::<NetfilterMessage>::deserialize(&bytes).unwrap();
    let NetlinkPayload::InnerMessage(message) = answer.payload else { panic!("{answer:?}") };
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(found)) = message.inner else {
        panic!("{message:?}")
    };
    let number = found.attributes.iter().find_map(|attribute| match attribute {
        GenAttribute::Id(number) => Some(*number),
        _ => None,
    });
    number.expect("a number")
}
