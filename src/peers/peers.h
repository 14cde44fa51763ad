/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA's libraries as peers to measure against: what of them is told. */
#ifndef MICA_PEERS_PEERS_H
#define MICA_PEERS_PEERS_H

/* Rows for mica info, from 0 on. They are not opened to be looked at. */
int mica_peers_info_rows(void);
void mica_peers_info_row(int index, const char **key, const char **value);

#endif
