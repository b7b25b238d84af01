//! Files of one instance that are damaged, gone or not ours: what they cost, and whom.

use egress_actors::domain::error::Class;
use egress_actors::domain::reason::Reason;

use super::trouble::assert_told;
use super::*;

impl Rig {
    /// The list of the entry, as its host asks for it.
    async fn list(&self, mark: &OwnerMark) -> Vec<Listed> {
        self.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list of the entry")
    }

    /// The list of everything, as the sweep asks for it.
    async fn stock(&self, mark: &OwnerMark) -> Vec<Listed> {
        self.process().list(&mark.operator, None).await.expect("a list of everything")
    }
}

fn row<'l>(list: &'l [Listed], mark: &OwnerMark) -> &'l Instance {
    let rows: Vec<_> = list.iter().filter(|row| row.mark.uid == mark.uid).collect();
    match rows.as_slice() {
        [row] => &row.instance,
        other => panic!("one row of {}: {other:?}", mark.uid),
    }
}

fn complaint(instance: &Instance) -> &str {
    instance.complaint.as_ref().map_or("", |complaint| &complaint.detail)
}

#[tokio::test]
async fn a_stray_file_in_the_state_directory_or_an_entrys_stops_no_list_and_no_sweep() {
    let Some(rig) = rig() else { return };
    let (mark, instance) = rig.made().await;
    let all = rig.dir.path().join("process");
    for stray in ["readme", "local/notes", "local/8c8f0a3e-6b0e-4d6c-9a52-3a1d0d6f1c11"] {
        fs::write(all.join(stray), "mind the gap").expect("a file");
    }
    fs::create_dir_all(all.join("local/backup/old")).expect("a folder");
    for list in [rig.list(&mark).await, rig.stock(&mark).await] {
        assert_eq!(list, [Listed { mark: mark.clone(), instance: instance.clone() }]);
    }
}

#[tokio::test]
async fn a_damaged_owner_mark_costs_its_own_instance_alone_which_is_never_absent() {
    let Some(mut rig) = rig() else { return };
    rig.entry.auth = Auth::Generated;
    let (good, well) = rig.made().await;
    let (mark, before) = rig.made().await;
    let path = rig.folder(&mark).join(directory::OWNER);
    let named = path.to_string_lossy().into_owned();
    for damaged in ["", "{}", "{\"operator\":", "\0"] {
        fs::write(&path, damaged).expect("a file");
        let list = rig.list(&mark).await;
        assert_eq!(row(&list, &good), &well);
        let shown = row(&list, &mark);
        assert_eq!((shown.state, &shown.provider_id), (InstanceState::Unknown, &before.provider_id));
        // What leases need is not lost with the mark.
        assert_eq!(shown.generated, before.generated);
        assert!(complaint(shown).contains(&named), "{shown:?}");
        // Nobody can say whose it is: the sweep does not hear of it.
        assert_eq!(rig.stock(&mark).await, [Listed { mark: good.clone(), instance: well.clone() }]);
        assert_told(rig.process().get(&mark).await, Class::Transient, Reason::Internal, &[&named]);
        assert_told(rig.process().delete(&mark).await, Class::Transient, Reason::Internal, &[&named]);
        assert_eq!(rig.children(&mark).len(), 1, "something was ended without a mark");
    }
}

#[tokio::test]
async fn damaged_credentials_cost_their_own_instance_alone_and_its_squid_runs_on() {
    let Some(mut rig) = rig() else { return };
    rig.entry.auth = Auth::Generated;
    let (good, well) = rig.made().await;
    let (mark, before) = rig.made().await;
    let pid = rig.pid(&mark);
    let path = rig.folder(&mark).join(directory::CREDENTIALS);
    for damaged in ["", "{\"username\":\"x\"}"] {
        fs::write(&path, damaged).expect("a file");
        let got = rig.process().get(&mark).await.expect("an instance");
        assert_eq!((got.state, &got.endpoint), (InstanceState::Unknown, &before.endpoint));
        assert!(complaint(&got).contains(&*path.to_string_lossy()), "{got:?}");
        for list in [rig.list(&mark).await, rig.stock(&mark).await] {
            assert_eq!((row(&list, &good), row(&list, &mark)), (&well, &got));
        }
        assert_eq!(rig.process().create(&rig.spec(&mark)).await.expect("what lives"), got);
    }
    assert_eq!(rig.pid(&mark), pid);
    rig.process().delete(&mark).await.expect("a delete needs no credentials");
}

#[tokio::test]
async fn an_orphan_whose_owner_mark_was_taken_is_kept_and_stops_no_sweep() {
    let Some(mut rig) = rig() else { return };
    let first = *rig.entry.ports.start();
    rig.entry.ports = first..=first;
    let (mark, before) = rig.made().await;
    let pid = rig.pid(&mark);
    let owner = rig.folder(&mark).join(directory::OWNER);
    fs::rename(&owner, owner.with_file_name("owner.json.kept")).expect("a rename");

    assert_eq!(rig.stock(&mark).await, []);
    let told = ["no owner mark"];
    assert_told(rig.process().get(&mark).await, Class::Permanent, Reason::NameConflict, &told);
    assert_told(rig.process().delete(&mark).await, Class::Permanent, Reason::NameConflict, &told);
    // Whoever follows this uid is not told that it is gone.
    let shown = rig.list(&mark).await;
    assert_eq!(row(&shown, &mark).state, InstanceState::Unknown);
    // Its port stays taken.
    let other = rig.mark();
    let told = ["0 are used by instances"];
    assert_told(rig.process().create(&rig.spec(&other)).await, Class::Transient, Reason::PortRangeExhausted, &told);
    assert_told(rig.process().check().await, Class::Transient, Reason::PortRangeExhausted, &["1 taken by others"]);
    assert_eq!(rig.pid(&mark), pid);

    // And it can be given back.
    fs::rename(owner.with_file_name("owner.json.kept"), &owner).expect("a rename");
    assert_eq!(rig.stock(&mark).await, [Listed { mark: mark.clone(), instance: before }]);
}

#[tokio::test]
async fn an_orphan_that_was_moved_out_of_the_state_directory_stops_no_sweep_though_it_was_the_last() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    // As a version left it that made no sign: the next list does.
    fs::remove_file(rig.site(&mark).base.join(directory::HERE)).expect("a sign");
    assert_eq!(rig.stock(&mark).await.len(), 1);
    let pid = rig.pid(&mark);
    fs::rename(rig.folder(&mark), rig.dir.path().join("kept")).expect("a rename");
    assert_eq!((rig.stock(&mark).await, rig.list(&mark).await), (vec![], vec![]));
    assert_eq!(rig.pid(&mark), pid);
}
