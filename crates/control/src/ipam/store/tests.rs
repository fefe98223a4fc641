use tombolo_core::ipam::SHARD_SIZE;

use super::*;

/// Open shards have a pending NatMapping, or are in the next batch, or are opened ahead of it.
#[test]
fn the_record_of_the_writer_has_a_limited_size() {
    let shard = |number| StorageShard::Endpoints("x".repeat(63).parse().unwrap(), number);
    let last = u32::MAX / SHARD_SIZE;
    let nat_mapping = shard(last).nat_mapping();
    let is_in_it = |number: &u32| shard(*number).nat_mapping() == nat_mapping;
    let shards_per_nat_mapping = (0..=last).rev().take_while(is_in_it).count();
    // Stale ones, and those of the current write.
    let pending = 2 * MAX_STALE * shards_per_nat_mapping;
    let most = MAX_OPEN.max(pending) + BATCH * (1 + AHEAD as usize);
    let writer = Writer {
        holder: Uuid::new_v4().to_string(),
        claims: u32::MAX,
        open: vec![shard(last).to_string(); most],
    };
    let spec = IpamStorageSpec { writer: Some(writer), ..IpamStorageSpec::default() };
    let size = serde_json::to_vec(&IpamStorage::new(WRITER, spec)).unwrap().len();
    assert!(size < 256 * 1024, "{size} bytes for {most} shards");
}
