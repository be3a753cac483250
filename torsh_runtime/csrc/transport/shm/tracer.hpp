// Letting the ranks' processes at each other's memory where the system lets none but ancestors.
#pragma once

namespace torsh::shm {

// The keeper that this process descends from (torshrun/keeper), the nearest one; 0 if there is none.
int find_keeper();

// Where a process can be traced by its ancestors alone (Yama's ptrace_scope 1): from now on the keeper's
// descendants can trace this one too. Takes the place of what this process has said to that before.
// Nothing changes without a keeper: no other ancestor has a job's processes alone for descendants.
void admit_siblings();

}  // namespace torsh::shm
