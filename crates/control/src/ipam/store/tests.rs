use tombolo_core::ipam::PART_SIZE;

use super::*;

/// What stays open is owed to the gateways or is written next, with what is opened ahead of it.
#[test]
fn what_says_who_writes_is_never_large() {
    let part = |number| Part::Endpoints("x".repeat(63).parse().unwrap(), number);
    let last = u32::MAX / PART_SIZE;
    let told = part(last).told();
    let parts_told = (0..=last).rev().take_while(|number| part(*number).told() == told).count();
    // Those to be written, and those that are being written.
    let owed = 2 * BEHIND * parts_told;
    let most = OPEN.max(owed) + AT_ONCE * (1 + AHEAD as usize);
    let writer = Writer {
        holder: Uuid::new_v4().to_string(),
        claims: u32::MAX,
        open: vec![part(last).to_string(); most],
    };
    let spec = IpamStorageSpec { writer: Some(writer), ..IpamStorageSpec::default() };
    let size = serde_json::to_vec(&IpamStorage::new(WRITER, spec)).unwrap().len();
    assert!(size < 256 * 1024, "{size} bytes for {most} parts");
}
