//! The rig of the conformance suite: what can happen to a Squid, its folder, and the directory of all.

use super::directory::OWNER;
use super::*;

/// An owner mark that was put aside.
const KEPT: &str = "owner.kept";

/// The directory of the entry, put aside.
const AWAY: &str = "away";

impl Rig {
    fn signal(&self, mark: &OwnerMark, signal: Signal) {
        for child in self.children(mark) {
            evidence::signal(&self.site(mark), &mark.uid, child, signal).expect("our own child");
        }
    }
}

#[async_trait]
impl ConformanceRig for Rig {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.process())
    }

    fn mark(&self) -> OwnerMark {
        let uid = uuid::Uuid::new_v4().to_string();
        OwnerMark {
            operator: OperatorId::parse("test-operator").expect("valid"),
            entry: self.entry.name.clone(),
            key: ProxyKey::new("crawl", &format!("px-{}", &uid[..8])).expect("valid"),
            uid: Uid::parse(&uid).expect("valid"),
        }
    }

    /// Processes and folders, the half made and half removed ones too; a whole instance has one of each. Shared memory
    /// counts where nothing else is left.
    async fn count(&self, mark: &OwnerMark) -> usize {
        let base = self.site(mark).base.clone();
        let Ok(entries) = fs::read_dir(base) else { return self.children(mark).len() };
        let names = entries.flatten().map(|entry| entry.file_name());
        let folders = names.filter(|name| name.to_string_lossy().ends_with(mark.uid.as_str())).count();
        let seen = folders.max(self.children(mark).len());
        if seen == 0 { shared_memory(mark) } else { seen }
    }

    async fn make_foreign(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("another-operator").expect("valid"), ..mark.clone() };
        self.process().create(&self.spec(&other)).await.expect("a create");
        true
    }

    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("another-operator").expect("valid"), ..mark.clone() };
        self.state(&other).await == InstanceState::Running && self.children(mark).len() == 1
    }

    async fn stop(&self, mark: &OwnerMark) -> bool {
        let children = self.children(mark);
        self.signal(mark, Signal::KILL);
        for child in children {
            while evidence::is_there(child) {
                tokio::task::yield_now().await;
            }
        }
        true
    }

    async fn pause(&self, mark: &OwnerMark) -> bool {
        self.signal(mark, Signal::STOP);
        true
    }

    async fn resume(&self, mark: &OwnerMark) {
        self.signal(mark, Signal::CONT);
    }

    /// Its owner mark is garbled.
    async fn make_unreadable(&self, mark: &OwnerMark) -> bool {
        let folder = self.folder(mark);
        fs::rename(folder.join(OWNER), folder.join(KEPT)).expect("a mark");
        fs::write(folder.join(OWNER), "{\"operator\": ").expect("a garbled mark");
        true
    }

    async fn make_readable(&self, mark: &OwnerMark) {
        let folder = self.folder(mark);
        fs::rename(folder.join(KEPT), folder.join(OWNER)).expect("a mark");
    }

    async fn break_list(&self, marks: &[OwnerMark], breakage: Breakage) -> bool {
        match breakage {
            Breakage::OnePart => self.make_unreadable(&marks[1]).await,
            // As if it were not mounted.
            Breakage::Everything => {
                fs::rename(&self.site(&marks[0]).base, self.dir.path().join(AWAY)).expect("a directory");
                true
            }
        }
    }

    async fn mend_list(&self, marks: &[OwnerMark]) {
        let away = self.dir.path().join(AWAY);
        if away.exists() {
            fs::rename(away, &self.site(&marks[0]).base).expect("a directory");
        } else {
            self.make_readable(&marks[1]).await;
        }
    }

    async fn mark_of_another_entry(&self) -> Option<(Arc<dyn Backend>, OwnerMark)> {
        let entry = ProcessEntry { name: ProviderName::parse("another").expect("valid"), ..self.entry.clone() };
        let mark = OwnerMark { entry: entry.name.clone(), ..self.mark() };
        let backend = ProcessBackend::new(entry, self.dir.path(), self.targets.clone());
        Some((Arc::new(backend.with_grace(Duration::from_millis(50))), mark))
    }

    async fn change_mark(&self, mark: &OwnerMark) -> Option<OwnerMark> {
        let other = OwnerMark { operator: OperatorId::parse("another-operator").expect("valid"), ..mark.clone() };
        let path = self.folder(mark).join(OWNER);
        let text = fs::read_to_string(&path).expect("a mark");
        fs::write(&path, text.replace(mark.operator.as_str(), other.operator.as_str())).expect("another mark");
        Some(other)
    }
}
